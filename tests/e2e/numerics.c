/* Ranks that reduce numbers in which every order of additions shows, and print what came out:
 *     e2e_numerics threads|processes NRANKS COLLECTIVE...
 * A line of standard output is `RANK COLLECTIVE TYPE OP COUNT DIGEST`. Each operation is done several times: again, in
 * place, with buffers that are aligned to nothing, and in place on some ranks only; a difference between these ends the
 * program with status 1, as does an average of integers that is not the wrapped sum divided towards zero; an error with
 * status 3. With E2E_HOSTS, one letter a rank, processes say that they are on
 * hosts of these names. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "nccl.h"

enum { MOST = 8, DIFFERENT = 1, USAGE = 2, FAILED = 3, SHIFT = 3 };

static const struct format {
  const char *name;
  ncclDataType_t type;
  int exponent, fraction; /* bits */
} formats[] = {{"half", ncclFloat16, 5, 10},    {"bfloat16", ncclBfloat16, 8, 7}, {"float", ncclFloat32, 8, 23},
               {"double", ncclFloat64, 11, 52}, {"e4m3", ncclFloat8e4m3, 4, 3},   {"e5m2", ncclFloat8e5m2, 5, 2},
               {"int8", ncclInt8, 0, 7},        {"uint8", ncclUint8, 0, 7},       {"int32", ncclInt32, 0, 31},
               {"uint32", ncclUint32, 0, 31},   {"int64", ncclInt64, 0, 63},      {"uint64", ncclUint64, 0, 63}};
static const char *const collectives[] = {"all_reduce", "reduce_scatter", "reduce"};
static const char *const ops[] = {"sum", "prod", "max", "min", "avg"};
static const size_t counts[] = {7, 1000};

static int nranks;
static bool chosen[3]; /* of the collectives */
static ncclUniqueId id;

static uint64_t mix(uint64_t x)
{
  x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
  return x ^ x >> 32;
}

/* Finite numbers of all sizes; in half of the places large ones that are equal but for the sign, which cancel. */
static void fill(const struct format *format, int rank, size_t count, unsigned char *out)
{
  size_t bytes = (size_t)(1 + format->exponent + format->fraction) / 8;
  for (size_t i = 0; i < count; i++) {
    uint64_t place = mix(i + 1), bits = mix(place + (uint64_t)rank * 1000003), number = bits;
    if (format->exponent > 0) {
      uint64_t most = ((1u << format->exponent) - 1) * 3 / 4,
               fraction = bits >> 8 & ((UINT64_C(1) << format->fraction) - 1);
      bool shared = (place & 1) && (bits & 6);
      number = shared ? most << format->fraction : (bits >> 3) % most << format->fraction | fraction;
      number |= (bits >> 62 & 1) << (format->exponent + format->fraction);
    }
    memcpy(out + i * bytes, &number, bytes); /* the low bytes */
  }
}

static uint64_t digest(const unsigned char *bytes, size_t n)
{
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

static void check(int rank, ncclResult_t result, ncclComm_t comm)
{
  if (result == ncclSuccess) return;
  fprintf(stderr, "rank %d: %s\n", rank, ncclGetLastError(comm));
  exit(FAILED);
}

struct operation {
  const struct format *format;
  int collective, op, variant;
  size_t count;
};

/* Does it once with these numbers; the result is copied to `out`. */
static void reduce(int rank, ncclComm_t comm, const struct operation *o, const unsigned char *numbers,
                   unsigned char *out)
{
  size_t bytes = (size_t)(1 + o->format->exponent + o->format->fraction) / 8;
  size_t blocks = o->collective == 1 ? (size_t)nranks : 1, size = o->count * bytes;
  bool in_place = o->variant == 2 || (o->variant == 4 && rank % 2);
  size_t shift = o->variant == 3 || (o->variant == 4 && !in_place) ? SHIFT : 0;
  unsigned char *memory[2] = {calloc(1, blocks * size + SHIFT), calloc(1, size + SHIFT)};
  unsigned char *in = memory[0] + shift,
                *to = in_place ? in + (blocks > 1 ? (size_t)rank * size : 0) : memory[1] + shift;
  memcpy(in, numbers, blocks * size);
  ncclResult_t result =
      o->collective == 0   ? ncclAllReduce(in, to, o->count, o->format->type, (ncclRedOp_t)o->op, comm, NULL)
      : o->collective == 1 ? ncclReduceScatter(in, to, o->count, o->format->type, (ncclRedOp_t)o->op, comm, NULL)
                           : ncclReduce(in, to, o->count, o->format->type, (ncclRedOp_t)o->op, 0, comm, NULL);
  check(rank, result, comm);
  if (o->collective < 2 || rank == 0) memcpy(out, to, size);
  free(memory[0]);
  free(memory[1]);
}

static bool is_signed(const struct format *format)
{
  return format->type == ncclInt8 || format->type == ncclInt32 || format->type == ncclInt64;
}

/* An integer of that type, extended to 64 bits. */
static uint64_t extend(const struct format *format, uint64_t value)
{
  int unused = 63 - format->fraction;
  return is_signed(format) ? (uint64_t)((int64_t)(value << unused) >> unused) : value << unused >> unused;
}

/* The average of all ranks' integers from place `first` on; most sums are too large for their type. */
static void check_average(const struct operation *o, size_t first, const unsigned char *result)
{
  size_t bytes = (size_t)(1 + o->format->fraction) / 8, all = first + o->count;
  unsigned char *input = calloc(all, bytes);
  uint64_t *sums = calloc(all, sizeof(*sums)), one = 0;
  for (int r = 0; r < nranks; r++) {
    fill(o->format, r, all, input);
    for (size_t i = first; i < all; i++) {
      memcpy(&one, input + i * bytes, bytes);
      sums[i] += one;
    }
  }
  for (size_t i = first; i < all; i++) {
    uint64_t sum = extend(o->format, sums[i]);
    uint64_t wanted = is_signed(o->format) ? (uint64_t)((int64_t)sum / nranks) : sum / (uint64_t)nranks;
    memcpy(&one, result + (i - first) * bytes, bytes);
    if (extend(o->format, one) == wanted) continue;
    printf("the average of %s, %s, at %zu is %llx, not %llx\n", collectives[o->collective], o->format->name, i,
           (unsigned long long)extend(o->format, one), (unsigned long long)wanted);
    exit(DIFFERENT);
  }
  free(input);
  free(sums);
}

static void try_operation(int rank, ncclComm_t comm, struct operation o)
{
  static const char *const variants[] = {"", "the second time", "in place", "unaligned", "in place here and there"};
  size_t size = o.count * 8;
  unsigned char *first = calloc(1, size), *again = calloc(1, size), *numbers = calloc((size_t)nranks, size);
  fill(o.format, rank, (size_t)nranks * o.count, numbers);
  for (o.variant = 0; o.variant < 5; o.variant++) {
    reduce(rank, comm, &o, numbers, o.variant == 0 ? first : again);
    if (o.variant > 0 && memcmp(first, again, size) != 0) {
      printf("rank %d: %s of %s, %s, differs %s\n", rank, collectives[o.collective], o.format->name, ops[o.op],
             variants[o.variant]);
      exit(DIFFERENT);
    }
  }
  if (o.format->exponent == 0 && o.op == ncclAvg && (o.collective < 2 || rank == 0))
    check_average(&o, o.collective == 1 ? (size_t)rank * o.count : 0, first);
  printf("%d %s %s %s %zu %016llx\n", rank, collectives[o.collective], o.format->name, ops[o.op], o.count,
         (unsigned long long)digest(first, size));
  free(numbers);
  free(first);
  free(again);
}

static void *run(void *arg)
{
  int rank = (int)(intptr_t)arg;
  ncclComm_t comm = NULL;
  check(rank, ncclCommInitRank(&comm, nranks, id, rank), comm);
  for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
    for (int op = ncclSum; op <= ncclAvg; op++) {
      if (op != ncclAvg && formats[f].exponent == 0 && formats[f].type != ncclInt32) continue;
      for (int c = 0; c < 3; c++)
        for (int n = 0; chosen[c] && n < 2; n++)
          try_operation(rank, comm, (struct operation){&formats[f], c, op, 0, counts[n]});
    }
  }
  check(rank, ncclCommDestroy(comm), NULL);
  return NULL;
}

static int run_threads(void)
{
  pthread_t threads[MOST];
  check(0, ncclGetUniqueId(&id), NULL);
  for (int r = 0; r < nranks; r++) pthread_create(&threads[r], NULL, run, (void *)(intptr_t)r);
  for (int r = 0; r < nranks; r++) pthread_join(threads[r], NULL);
  return 0;
}

/* Rank 0 is a process too, and tells the others the id: so this one has no threads when it forks. */
static int run_processes(void)
{
  const char *hosts = getenv("E2E_HOSTS");
  int pipe_of[MOST][2], worst = 0;
  for (int r = 0; r < nranks; r++)
    if (pipe(pipe_of[r]) != 0) return FAILED;
  for (int r = 0; r < nranks; r++) {
    if (fork() != 0) continue;
    char host[] = {hosts != NULL ? hosts[r] : 'a', 0};
    if (hosts != NULL) setenv("NCCL_HOSTID", host, 1);
    if (r == 0) check(r, ncclGetUniqueId(&id), NULL);
    for (int other = 1; r == 0 && other < nranks; other++)
      if (write(pipe_of[other][1], &id, sizeof(id)) != sizeof(id)) exit(FAILED);
    if (r != 0 && read(pipe_of[r][0], &id, sizeof(id)) != sizeof(id)) exit(FAILED);
    run((void *)(intptr_t)r);
    exit(0);
  }
  for (int r = 0; r < nranks; r++) {
    int status;
    if (wait(&status) < 0 || !WIFEXITED(status)) return FAILED;
    if (WEXITSTATUS(status) > worst) worst = WEXITSTATUS(status);
  }
  return worst;
}

static bool choose(const char *collective)
{
  for (int c = 0; c < 3; c++) {
    if (strcmp(collective, collectives[c]) == 0) return chosen[c] = true;
  }
  return false;
}

int main(int argc, char **argv)
{
  if (argc > 2) nranks = atoi(argv[2]);
  bool right = argc > 3 && nranks >= 1 && nranks <= MOST;
  for (int i = 3; i < argc; i++) right = choose(argv[i]) && right;
  if (!right) {
    fprintf(stderr, "usage: %s threads|processes NRANKS all_reduce|reduce_scatter|reduce ...\n", argv[0]);
    return USAGE;
  }
  setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* processes share it, line by line */
  return strcmp(argv[1], "threads") == 0 ? run_threads() : run_processes();
}
