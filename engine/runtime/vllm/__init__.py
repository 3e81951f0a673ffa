"""Routed prefill inside vLLM: a plug-in that takes the place of vLLM's own attention backend, when asked to.

vLLM loads ``plugin.register`` in each of its processes. Without ROUTESPARSE_VLLM=1 it does nothing at all.
"""
