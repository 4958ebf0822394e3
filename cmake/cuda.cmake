# CUDA 13.0 for sm_90a only. Warnings about serialised WGMMA (ptxas C75xx) and register spills are judged by
# scripts/check_cuda.py from the ptxas output that -Xptxas -v leaves in the build log.
set(CMAKE_CUDA_ARCHITECTURES 90a)
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)
target_compile_options(quaver_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 # CMake 3.25 has no CUDA_STANDARD 20
                                                -lineinfo
                                                --expt-relaxed-constexpr
                                                -Xptxas=-v
                                                -Xcompiler=-Wall,-Wextra,-Werror
                                                --Werror=all-warnings>)
