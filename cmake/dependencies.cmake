# Everything that comes from outside. Nothing is downloaded here: scripts/setup.sh brings system packages and wheels.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

if(QUAVER_BLAS)
  find_path(QUAVER_OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas-openmp openblas REQUIRED)
  find_library(QUAVER_OPENBLAS_LIBRARY NAMES openblas PATH_SUFFIXES openblas-openmp REQUIRED)
  add_library(quaver_blas INTERFACE)
  target_include_directories(quaver_blas SYSTEM INTERFACE "${QUAVER_OPENBLAS_INCLUDE}")
  target_link_libraries(quaver_blas INTERFACE "${QUAVER_OPENBLAS_LIBRARY}")
  target_compile_definitions(quaver_blas INTERFACE QUAVER_HAVE_BLAS=1)
endif()

if(QUAVER_MODEL)
  find_package(nlohmann_json 3.11 REQUIRED)
endif()

if(QUAVER_TESTS)
  find_package(GTest REQUIRED)
endif()

if(QUAVER_PYTHON)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir OUTPUT_STRIP_TRAILING_WHITESPACE
                  OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
  find_package(nanobind CONFIG REQUIRED)
endif()
