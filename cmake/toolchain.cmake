# Compiler flags, the linker and the compiler cache: everything that is not a dependency.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror
                    -fno-math-errno -ffp-contract=off)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
if(BRRR_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
if(BRRR_FUZZ)
  # Clang, which libFuzzer needs, has warnings of its own; GCC's build is the one that must be free
  # of them.
  add_compile_options(-Wno-error -Wno-everything -fsanitize=address,undefined,fuzzer-no-link
                      -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
find_program(MOLD mold)
if(MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
