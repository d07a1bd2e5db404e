"""Measuring drafters: acceptance by replay, its table and its plots."""
