/* A CUDA driver that is too old: it has none of the functions. */
int tt_test_old_driver;
