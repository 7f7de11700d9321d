# Compiler flags, the linker and the compiler cache: everything that is not a dependency.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror
                    -fno-math-errno -ffp-contract=off -fopenmp-simd)
# Without line tables, which would take a sixth of the compile time; Debug has them.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
if(BRRR_DEPS_DIR)
  # A machine with a compiler of its own: what that one warns of is news, not a failure.
  add_compile_options(-Wno-error)
endif()
if(BRRR_SANITIZE)
  # Clang, which libFuzzer needs, has warnings of its own; GCC's build is the one that must be free of
  # them. Unoptimised code compiles in half the time; brrr_folder() optimises what tests wait for. Line
  # tables are all that a report needs, and checks of addresses are calls: both save compile time, too.
  set(CMAKE_CXX_FLAGS_DEBUG "-O0 -gline-tables-only")
  add_compile_options(-Wno-error -Wno-everything -fsanitize=address,undefined
                      "SHELL:-mllvm -asan-instrumentation-with-call-threshold=0"
                      -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_compile_definitions(BRRR_SANITIZED)
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
# Joins TARGET's files into unity files of about 250 KB (6,000 lines, 0.7 GB and half a minute of GCC):
# templates of the standard library, fmt and JSON that several files use are then instantiated once,
# which takes a third of the compile time of groups of six files. A folder larger than that is split
# by the hash of the file's name, and smaller folders share a group, so that a new file seldom moves
# another one into another group. Names in anonymous namespaces must differ within a group; groups
# follow sizes, so an edited file runs CMake again, and a clash appears with the edit that makes it.
# -DBRRR_JOIN=OFF compiles every file by itself, for whoever edits them all day.
option(BRRR_JOIN "compile several source files at a time" ON)
function(brrr_join TARGET)
  if(NOT BRRR_JOIN)
    return()
  endif()
  set(GROUP_BYTES 250000)
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(SOURCES ${TARGET} SOURCES)
  list(SORT SOURCES)
  set(FOLDERS)
  foreach(SOURCE IN LISTS SOURCES)
    get_source_file_property(APART ${SOURCE} SKIP_UNITY_BUILD_INCLUSION)
    if(APART)
      continue()
    endif()
    get_filename_component(FOLDER ${SOURCE} DIRECTORY)
    get_filename_component(SOURCE ${SOURCE} ABSOLUTE)
    string(MAKE_C_IDENTIFIER "${FOLDER}" ID)
    if(NOT DEFINED bytes_${ID})
      list(APPEND FOLDERS ${ID})
      set(bytes_${ID} 0)
      get_filename_component(name_${ID} ${FOLDER} NAME)
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${SOURCE})
    file(SIZE ${SOURCE} BYTES)
    math(EXPR bytes_${ID} "${bytes_${ID}} + ${BYTES}")
    list(APPEND files_${ID} ${SOURCE})
  endforeach()
  set(shared 0)
  set(shared_bytes 0)
  foreach(ID IN LISTS FOLDERS)
    math(EXPR PARTS "(${bytes_${ID}} + ${GROUP_BYTES} - 1) / ${GROUP_BYTES}")
    if(PARTS GREATER 1)
      foreach(SOURCE IN LISTS files_${ID})
        get_filename_component(NAME ${SOURCE} NAME)
        string(MD5 HASH ${NAME})
        string(SUBSTRING ${HASH} 0 6 HASH)
        math(EXPR PART "0x${HASH} % ${PARTS}")
        set_source_files_properties(${SOURCE} PROPERTIES UNITY_GROUP ${name_${ID}}_${PART})
      endforeach()
      continue()
    endif()
    math(EXPR TOGETHER "${shared_bytes} + ${bytes_${ID}}")
    if(TOGETHER GREATER GROUP_BYTES)
      math(EXPR shared "${shared} + 1")
      set(shared_bytes 0)
    endif()
    math(EXPR shared_bytes "${shared_bytes} + ${bytes_${ID}}")
    foreach(SOURCE IN LISTS files_${ID})
      set_source_files_properties(${SOURCE} PROPERTIES UNITY_GROUP folders_${shared})
    endforeach()
  endforeach()
endfunction()
# For code that runs once per command, step or page, and for tests: optimising it takes a third of
# its compile time and nobody waits for it at run time. Debug builds do without any.
function(brrr_glue TARGET)
  target_compile_options(${TARGET} PRIVATE $<IF:$<CONFIG:Debug>,-O0,-O1>)
endfunction()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
  if(BRRR_SANITIZE)
    # Of an inline function that tests and libraries both contain, mold takes the copy that it meets
    # first: the libraries', which is instrumented.
    set(CMAKE_CXX_LINK_EXECUTABLE "<CMAKE_CXX_COMPILER> <FLAGS> <CMAKE_CXX_LINK_FLAGS> <LINK_FLAGS> \
<LINK_LIBRARIES> <OBJECTS> -o <TARGET>")
  endif()
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
