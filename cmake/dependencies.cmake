# Every dependency, found once. BRRR_DEPS_DIR holds unpacked headers and libraries for machines
# without a package manager.
if(BRRR_DEPS_DIR)
  list(PREPEND CMAKE_PREFIX_PATH ${BRRR_DEPS_DIR})
  list(PREPEND CMAKE_INCLUDE_PATH ${BRRR_DEPS_DIR}/include)
  list(PREPEND CMAKE_LIBRARY_PATH ${BRRR_DEPS_DIR}/lib)
  # Libraries there need others there: the old kind of path is for those, too.
  add_link_options(-Wl,--disable-new-dtags)
endif()

find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)

# name, header, library (optional)
function(brrr_find NAME HEADER)
  find_path(${NAME}_INCLUDE ${HEADER} REQUIRED)
  add_library(dep_${NAME} INTERFACE)
  target_include_directories(dep_${NAME} SYSTEM INTERFACE ${${NAME}_INCLUDE})
  foreach(LIBRARY IN LISTS ARGN)
    find_library(${NAME}_${LIBRARY} ${LIBRARY} REQUIRED)
    target_link_libraries(dep_${NAME} INTERFACE ${${NAME}_${LIBRARY}})
  endforeach()
endfunction()

brrr_find(dnnl dnnl.hpp dnnl)
brrr_find(hwy hwy/highway.h hwy)
brrr_find(fmt fmt/format.h fmt)
brrr_find(json nlohmann/json.hpp)
brrr_find(toml toml++/toml.h)
brrr_find(httplib httplib.h cpp-httplib)
brrr_find(pcre2 pcre2.h pcre2-8)
if(BRRR_TESTS)
  find_package(GTest REQUIRED)
endif()
