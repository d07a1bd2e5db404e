"""Measuring drafters: acceptance by replay, real decoding and its speed, tables and plots."""
