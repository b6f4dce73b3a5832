/* The statuses of completions, in words, with what to check. */
#include "net_ib.h"

struct tt_ib_status tt_ib_status(enum ibv_wc_status status)
{
  switch (status) {
  case IBV_WC_SUCCESS:
    return (struct tt_ib_status){"success", "nothing", false, false};
  case IBV_WC_LOC_LEN_ERR:
    return (struct tt_ib_status){"local length error", "the message is longer than the port allows", false, false};
  case IBV_WC_LOC_QP_OP_ERR:
    return (struct tt_ib_status){"local queue pair operation error",
                                 "the queue pair cannot do what it was asked to; look "
                                 "at the system log for the NIC's driver",
                                 false, false};
  case IBV_WC_LOC_PROT_ERR:
    return (struct tt_ib_status){
        "local protection error",
        "memory that was to be sent is not registered any more; it was freed, or deregistered, "
        "too early",
        false, false};
  case IBV_WC_WR_FLUSH_ERR:
    return (struct tt_ib_status){"flushed", "the queue pair failed before; its first error tells why", true, true};
  case IBV_WC_MW_BIND_ERR:
    return (struct tt_ib_status){"memory window bind error", "look at the system log for the NIC's driver", false,
                                 false};
  case IBV_WC_BAD_RESP_ERR:
    return (struct tt_ib_status){"bad response",
                                 "the peer's NIC answered with what is no answer; look at its firmware "
                                 "and the cables",
                                 true, true};
  case IBV_WC_LOC_ACCESS_ERR:
    return (struct tt_ib_status){"local access error", "the peer wrote to memory here that is not registered any more",
                                 false, false};
  case IBV_WC_REM_INV_REQ_ERR:
    return (struct tt_ib_status){"remote invalid request",
                                 "the peer's NIC cannot take such a request; do both sides run "
                                 "the same version?",
                                 true, false};
  case IBV_WC_REM_ACCESS_ERR:
    return (struct tt_ib_status){
        "remote access error",
        "the peer's memory is not registered any more: it was freed, or the peer failed or closed; "
        "see its log",
        true, false};
  case IBV_WC_REM_OP_ERR:
    return (struct tt_ib_status){"remote operation error", "the peer's NIC failed; see its system log", true, true};
  case IBV_WC_RETRY_EXC_ERR:
    return (struct tt_ib_status){
        "transport retry counter exceeded",
        "the peer's port does not answer: check its link and its process, the switches between, that both GIDs are of "
        "one "
        "kind and reach each other (ping, ib_write_bw), NCCL_IB_GID_INDEX, NCCL_IB_TC and the switches' priorities; "
        "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT set the patience",
        true, true};
  case IBV_WC_RNR_RETRY_EXC_ERR:
    return (struct tt_ib_status){"receiver not ready, retry counter exceeded",
                                 "the peer had no receive for a message; do both sides run the same version?", true,
                                 false};
  case IBV_WC_LOC_RDD_VIOL_ERR:
    return (struct tt_ib_status){"local RDD violation", "look at the system log for the NIC's driver", false, false};
  case IBV_WC_REM_INV_RD_REQ_ERR:
    return (struct tt_ib_status){"remote invalid RD request", "the peer's NIC cannot take such a request", true, false};
  case IBV_WC_REM_ABORT_ERR:
    return (struct tt_ib_status){"remote aborted", "the peer's NIC gave the operation up; see its system log", true,
                                 true};
  case IBV_WC_INV_EECN_ERR:
    return (struct tt_ib_status){"invalid end-to-end context number", "look at the system log for the NIC's driver",
                                 false, false};
  case IBV_WC_INV_EEC_STATE_ERR:
    return (struct tt_ib_status){"invalid end-to-end context state", "look at the system log for the NIC's driver",
                                 false, false};
  case IBV_WC_FATAL_ERR:
    return (struct tt_ib_status){"fatal error", "the NIC or its driver failed; see the system log", false, true};
  case IBV_WC_RESP_TIMEOUT_ERR:
    return (struct tt_ib_status){"response timeout", "the peer's NIC does not answer; check its link", true, true};
  case IBV_WC_GENERAL_ERR:
    return (struct tt_ib_status){"general error", "the NIC or its driver failed; see the system log", false, true};
  default:
    return (struct tt_ib_status){"unknown status", "look at the system log for the NIC's driver", false, false};
  }
}
