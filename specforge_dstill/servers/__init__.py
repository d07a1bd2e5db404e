"""Servers of SGLang and vLLM, asked over HTTP: answers, how long those took, and their drafts."""
