/* A device with faults that one rank of this process has and the others do not. Threads of the library read a
 * communicator's table of the device without a lock, so the rank's communicator has a table of its own from before it
 * has threads, which no test changes; what fails can be changed at any time, from any thread. Programs with this are
 * linked with --wrap=tt_transport_env_create. */
#ifndef TT_TESTS_COMMON_FAULTY_DEVICE_H
#define TT_TESTS_COMMON_FAULTY_DEVICE_H

#include <stdint.h>

/* How many more calls succeed before all others fail. At first no call fails. */
enum { FAULTY_NEVER = -1 };
struct faulty_device {
  _Atomic int imports;    /* of one allocation of another rank's */
  _Atomic int exports;    /* of users' memory */
  _Atomic int graph_ends; /* that are to be told */
};
extern struct faulty_device faulty_device;

/* The next communicator that has a rank of this number gives it this device, which does not have the features `lacks`.
 * One communicator at a time has it. */
void faulty_device_next(int rank, uint32_t lacks);

#endif
