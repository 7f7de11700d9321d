# `cmake --install BUILD --prefix P`: the program, the library with its headers, files by which CMake and
# pkg-config find it, man pages, completions, notices. The prefix can be moved: what is installed finds
# its parts from where it lies.
set(INSTALL_BIN bin)
set(INSTALL_LIB lib)

# The old kind of path also serves the libraries that those of a tarball or a wheel need in turn.
target_link_options(brrr_shared PRIVATE -Wl,--disable-new-dtags)
target_link_options(brrr_installed PRIVATE -Wl,--disable-new-dtags)
set_target_properties(brrr_shared PROPERTIES EXPORT_NAME brrr INSTALL_RPATH "$ORIGIN")
set_target_properties(brrr_installed PROPERTIES INSTALL_RPATH "$ORIGIN/../${INSTALL_LIB}")

install(TARGETS brrr_installed RUNTIME DESTINATION ${INSTALL_BIN})
install(TARGETS brrr_shared EXPORT brrrTargets LIBRARY DESTINATION ${INSTALL_LIB}
        INCLUDES DESTINATION include)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/brrr DESTINATION include FILES_MATCHING PATTERN *.h)
install(EXPORT brrrTargets NAMESPACE brrr:: DESTINATION ${INSTALL_LIB}/cmake/brrr)

include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/brrrConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
file(WRITE ${CMAKE_BINARY_DIR}/brrrConfig.cmake
     "include(\${CMAKE_CURRENT_LIST_DIR}/brrrTargets.cmake)\n")
install(FILES ${CMAKE_BINARY_DIR}/brrrConfig.cmake ${CMAKE_BINARY_DIR}/brrrConfigVersion.cmake
        DESTINATION ${INSTALL_LIB}/cmake/brrr)

configure_file(${PROJECT_SOURCE_DIR}/cmake/brrr.pc.in ${CMAKE_BINARY_DIR}/brrr.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/brrr.pc DESTINATION ${INSTALL_LIB}/pkgconfig)

# What the program says of itself, once it is built.
install(CODE "execute_process(COMMAND \"${PROJECT_SOURCE_DIR}/scripts/packaging/describe.sh\"
    \"$<TARGET_FILE:brrr_installed>\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\"
    COMMAND_ERROR_IS_FATAL ANY)")
