/* Names that users of NCCL know and Tutti does not obey: setting one is reported once. TT_OTHER(name, answer): answer
 * is what to use instead, or NULL when the name simply has no effect here yet. The base folder's owner completes it. */
