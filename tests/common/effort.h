/* How much a test does. Sanitizers make programs some ten times slower, and what they look for shows with less data
 * than what takes the other builds to all sizes. */
#ifndef TT_TESTS_COMMON_EFFORT_H
#define TT_TESTS_COMMON_EFFORT_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define EFFORT(usual, sanitized) (sanitized)
#else
#define EFFORT(usual, sanitized) (usual)
#endif

/* Of what only one thread does: the thread sanitizer has nothing to see in it. */
#ifdef __SANITIZE_THREAD__
#define EFFORT_ALONE(usual, of_thread_sanitizer) (of_thread_sanitizer)
#else
#define EFFORT_ALONE(usual, of_thread_sanitizer) (usual)
#endif

#endif
