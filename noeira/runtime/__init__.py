"""The runtime: the only folder that touches MAX. Devices, staging, programs, the program store, kernels."""
