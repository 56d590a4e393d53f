# `cmake --install build/release --prefix DIR`: bin/sluice and the documents.
if(TARGET sluice)
  install(TARGETS sluice RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
foreach(document README.md ARCHITECTURE.md LICENSE)
  if(EXISTS "${CMAKE_SOURCE_DIR}/${document}")
    install(FILES "${CMAKE_SOURCE_DIR}/${document}" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
  endif()
endforeach()
if(EXISTS "${CMAKE_SOURCE_DIR}/docs")
  install(DIRECTORY "${CMAKE_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
    FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png")
endif()
