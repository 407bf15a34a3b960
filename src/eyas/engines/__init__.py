"""Serving engines: what each version of vLLM and SGLang feeds a draft, and how to make it feed the right states."""
