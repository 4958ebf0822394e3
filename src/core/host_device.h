// Marks functions that the host and CUDA devices share.
#pragma once

#if defined(__CUDACC__)
#define QUAVER_HD __host__ __device__
#else
#define QUAVER_HD
#endif
