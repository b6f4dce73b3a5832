/* Put in front of the files under test: where they find NVML and the kernel's view of PCI devices. */
#ifndef TEST_KERNELS_CUDA_DESCRIBE_CONFIG_H
#define TEST_KERNELS_CUDA_DESCRIBE_CONFIG_H

extern const char *test_nvml, *test_sysfs;
#define TT_CUDA_NVML test_nvml
#define TT_CUDA_SYSFS test_sysfs

#endif
