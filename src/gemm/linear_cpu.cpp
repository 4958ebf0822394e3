#include "gemm/linear.h"
