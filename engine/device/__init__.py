"""What a GPU needs and the method does not say: CUDA graphs, constants, lap times, copies to the host."""
