/* A program as text, for people. */
#ifndef TT_PROGRAM_DUMP_H
#define TT_PROGRAM_DUMP_H

#include <stdio.h>
#include "tutti/program.h"

/* Prints the program, an instruction a line, for example rank 2 of 4 in a ring all-reduce:
 *
 *     AllReduce RING: rank 2 of 4, parts 4, input 1, output 1
 *     strand 0
 *       0       input[1] -> send 3
 *       1  x2   recv 1 + input[0-i mod 4] -> send 3
 *       2       recv 1 + input[2] -> output[2], send 3  final
 *       3  x2   recv 1 -> output[1-i mod 4], send 3
 *       4       output[3] <- recv 1
 *
 * Peers are ranks or `network 0`; i counts repetitions. A list of chunks is written as its first and last, `output[5..0
 * mod 6]`, with the step where that is not one, `output[1..5 step 2 mod 6]`. A move is written with its own arrow:
 * `output[3] <- recv 1` stores what was received, `send 1 <- input[3]` sends a local chunk. A message without data is
 * `send 1 <- nothing`; `multicast[3]` is chunk 3 of all members' copies of the shared memory; `input of 2[3]` is
 * chunk 3 of rank 2's input. Program and output are
 * the caller's. */
void tt_program_print(const struct tt_program *program, FILE *out);

#endif
