# Language level, warnings and sanitizers of our own code: every target links quaver_options privately.
add_library(quaver_options INTERFACE)
target_compile_features(quaver_options INTERFACE cxx_std_20)
target_compile_options(
  quaver_options
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall
            -Wextra
            -Wpedantic
            -Wshadow
            -Wconversion
            -Wno-sign-conversion
            -Wold-style-cast
            -Wnon-virtual-dtor
            -Wempty-body
            -Werror>)
# Products and sums are rounded one by one, so that CPU results do not depend on the compiler's choice of FMA.
target_compile_options(quaver_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(quaver_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${QUAVER_CPU_ARCH}>)
endif()
if(QUAVER_SANITIZE)
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(quaver_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${sanitize}>)
  target_link_options(quaver_options INTERFACE ${sanitize})
endif()
