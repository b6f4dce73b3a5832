/* Half precision to and from fp32 by the F16C instructions; included by the levels that have them. */
static void widen_half(float *out, const void *in, size_t count)
{
  const unsigned char *x = in;
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + 2 * i))));
  for (; i < count; i++) {
    uint16_t half;
    __builtin_memcpy(&half, x + 2 * i, sizeof(half));
    out[i] = _cvtsh_ss(half);
  }
}

static void narrow_half(void *out, const float *in, size_t count)
{
  unsigned char *o = out;
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128((__m128i *)(void *)(o + 2 * i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < count; i++) {
    uint16_t half = _cvtss_sh(in[i], _MM_FROUND_TO_NEAREST_INT);
    __builtin_memcpy(o + 2 * i, &half, sizeof(half));
  }
}
