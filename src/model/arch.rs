//! The architectures we run, one row each.
