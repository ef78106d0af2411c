//! Ready means: this process just wrote a row, another process read it back through the path, and the descriptors and
//! locks are those of the current generation. Anything less is said to be what it is.
