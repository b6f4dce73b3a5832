/* Messages of calls that all ranks make, and that may fail on some of them: each begins with the call's number. */
#include <stdlib.h>
#include <string.h>
#include "base/check.h"
#include "bootstrap/internal.h"

ncclResult_t tt_bootstrap_call_send(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, int peer,
                                    uint32_t tag, const void *data, size_t bytes)
{
  unsigned char *packed = malloc(TT_CALL_BYTES + bytes);
  if (!packed) return TT_FAIL(ncclSystemError, "out of memory for a bootstrap message of %zu bytes", bytes);
  tt_wire_put_u64(packed, call->number);
  if (bytes) memcpy(packed + TT_CALL_BYTES, data, bytes);
  ncclResult_t result = tt_bootstrap_send(b, peer, tag, packed, TT_CALL_BYTES + bytes);
  free(packed);
  return result;
}

ncclResult_t tt_bootstrap_call_recv(struct tt_bootstrap *b, const struct tt_bootstrap_call *call, int peer,
                                    uint32_t tag, void **data, size_t *bytes, tt_deadline deadline)
{
  struct tt_message *message;
  *data = NULL;
  *bytes = 0;
  TT_TRY(tt_mail_receive(b, peer, tag, (struct tt_mail_scope){.call = call}, deadline, &message));
  size_t got = message->bytes - TT_CALL_BYTES;
  *data = malloc(got ? got : 1);
  if (*data) memcpy(*data, message->data + TT_CALL_BYTES, got);
  free(message);
  if (!*data) return TT_FAIL(ncclSystemError, "out of memory for a bootstrap message of %zu bytes", got);
  *bytes = got;
  return ncclSuccess;
}
