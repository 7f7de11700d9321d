# Compiler flags, the linker and the compiler cache: everything that is not a dependency.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror
                    -fno-math-errno -ffp-contract=off)
# Without line tables, which would take a sixth of the compile time; Debug has them.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
if(BRRR_SANITIZE)
  # Line tables are all that a report needs; the rest of -g takes a quarter of the compile time.
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
endif()
if(BRRR_DEPS_DIR)
  # A machine with a compiler of its own: what that one warns of is news, not a failure.
  add_compile_options(-Wno-error)
endif()
if(BRRR_SANITIZE)
  # GCC's warnings are wrong at times about what it has instrumented; the release build is the one
  # that must be free of them.
  # Checks of addresses as calls, and none of what each dereference repeats (null pointers end the
  # process by themselves; the fuzzers' build looks at alignment in what it links): that halves the
  # compile time.
  add_compile_options(-Wno-error -fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-sanitize=null,alignment,vptr,object-size
                      --param=asan-instrumentation-with-call-threshold=0 -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
if(BRRR_FUZZ)
  # Clang, which libFuzzer needs, has warnings of its own; GCC's build is the one that must be free
  # of them. Line tables alone, and checks of addresses as calls, save a fifth of the compile time.
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
  add_compile_options(-Wno-error -Wno-everything -fsanitize=address,undefined,fuzzer-no-link
                      "SHELL:-mllvm -asan-instrumentation-with-call-threshold=0"
                      -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
# Half of a compiler's time goes into the standard library's headers and fmt's, so they are parsed
# once and kept. GCC forgets which of what it kept are system headers and warns inside std::string,
# wrongly: those warnings are off, and the sanitizers look for what they mean.
set(BRRR_COMMON_HEADERS
    <algorithm> <cmath> <functional> <map> <memory> <optional> <set> <span> <string> <vector>
    <fmt/format.h>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-array-bounds -Wno-restrict -Wno-stringop-overflow
                      -Wno-stringop-overread)
endif()

# Precompiles the headers for TARGET, or takes those of another target with the same flags.
function(brrr_headers TARGET)
  cmake_parse_arguments(ARG "" "OF" "MORE" ${ARGN})
  if(ARG_OF AND NOT ARG_OF STREQUAL TARGET)
    target_precompile_headers(${TARGET} REUSE_FROM ${ARG_OF})
  else()
    target_precompile_headers(${TARGET} PRIVATE ${BRRR_COMMON_HEADERS} ${ARG_MORE})
  endif()
endfunction()
# Compiles up to FILES of TARGET's files at a time (6 where it is not said), always of one folder,
# because templates of the standard library, fmt and JSON that several files use are then instantiated
# once.
# -DBRRR_JOIN=OFF: one by one, for whoever edits them all day.
option(BRRR_JOIN "compile several source files at a time" ON)
function(brrr_join TARGET)
  cmake_parse_arguments(ARG "" "FILES" "" ${ARGN})
  if(NOT ARG_FILES)
    set(ARG_FILES 6)
  endif()
  if(NOT BRRR_JOIN)
    return()
  endif()
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(SOURCES ${TARGET} SOURCES)
  list(SORT SOURCES)
  foreach(SOURCE IN LISTS SOURCES)
    get_filename_component(FOLDER ${SOURCE} DIRECTORY)
    string(MAKE_C_IDENTIFIER "count_${FOLDER}" COUNT)
    if(NOT DEFINED ${COUNT})
      set(${COUNT} 0)
    endif()
    math(EXPR GROUP "${${COUNT}} / ${ARG_FILES}")
    math(EXPR ${COUNT} "${${COUNT}} + 1")
    get_filename_component(NAME ${FOLDER} NAME)
    set_source_files_properties(${SOURCE} PROPERTIES UNITY_GROUP ${NAME}_${GROUP})
  endforeach()
endfunction()
# For code that runs once per command, step or page, and for tests: optimising it takes a third of
# its compile time and nobody waits for it at run time. Debug builds do without any.
function(brrr_glue TARGET)
  target_compile_options(${TARGET} PRIVATE $<IF:$<CONFIG:Debug>,-O0,-O1>)
endfunction()
find_program(MOLD mold)
if(MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_link_options(-fuse-ld=mold)
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
