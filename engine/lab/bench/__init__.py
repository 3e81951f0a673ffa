"""Benchmarks: on a GPU the kernel, one layer and a whole prefill, each against dense kernels; two servers in pairs."""
