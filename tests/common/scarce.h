/* A process that runs short of descriptors, for tests of what is said and done then. One thread. */
#ifndef TT_TESTS_COMMON_SCARCE_H
#define TT_TESTS_COMMON_SCARCE_H

/* From now on only `left` more can be made. Not to be called twice without an end in between. */
void scarce_begin(int left);
/* How many of them are left; takes none. */
int scarce_left(void);
/* As many as before. */
void scarce_end(void);

#endif
