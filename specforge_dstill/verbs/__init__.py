"""Commands of `specforge-dstill` that bring several parts of the package together."""
