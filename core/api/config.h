/* The settings of one communicator: ncclConfig_t of any release, read into our own, checked, with the environment on
 * top. */
#ifndef TT_API_CONFIG_H
#define TT_API_CONFIG_H

#include "nccl.h"

/* `user` may be NULL (all defaults). Members left undefined get their defaults. ncclInvalidArgument naming the member,
 * its value and what is allowed. */
ncclResult_t tt_config_read(const ncclConfig_t *user, ncclConfig_t *config);

/* Gives the config names of its own, and frees them. */
ncclResult_t tt_config_own_names(ncclConfig_t *config);
void tt_config_free_names(ncclConfig_t *config);

#endif
