# Text files that a library carries: each becomes an entry of brrr::embedded_<folder>(), a table of
# names and texts that <target> compiles.
function(brrr_embed TARGET FOLDER EXTENSION)
  file(GLOB FILES CONFIGURE_DEPENDS ${FOLDER}/*.${EXTENSION})
  string(REPLACE "/" "_" NAME ${FOLDER})
  set(ENTRIES "")
  foreach(FILE IN LISTS FILES)
    get_filename_component(FILE_NAME ${FILE} NAME)
    file(READ ${FILE} TEXT)
    string(APPEND ENTRIES "    {\"${FILE_NAME}\", R\"embedded(${TEXT})embedded\"},\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${FILE})
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded.cpp.in
                 ${CMAKE_CURRENT_BINARY_DIR}/embedded_${NAME}.cpp @ONLY)
  target_sources(${TARGET} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/embedded_${NAME}.cpp)
endfunction()
