# `cmake --install build/release --prefix DIR`: bin/sluice, Gloo's module, the machines on paper and the documents.
#
# `cpack --config build/cuda/CPackConfig.cmake -B DIR`: a bundle besides, as one .tar.gz: bin/sluice, the GPU's
# tests where they were built, and all shared libraries that they need but the C library's and CUDA's own, found
# by $ORIGIN. It starts on a plain machine; cuBLASLt and NCCL are looked for there when they are needed.
set(bundled)
foreach(program sluice test_device_gpu test_kernels_gpu test_collectives_gpu)
  if(TARGET ${program})
    list(APPEND bundled ${program})
    set_target_properties(${program} PROPERTIES
      INSTALL_RPATH "$ORIGIN/../lib" BUILD_WITH_INSTALL_RPATH ON)
    # DT_RPATH, which holds for the libraries' own libraries too.
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
  endif()
endforeach()
if(TARGET sluice)
  install(TARGETS sluice RUNTIME_DEPENDENCY_SET bundled_libraries
    RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  list(REMOVE_ITEM bundled sluice)
endif()
# Not CMAKE_INSTALL_LIBDIR: where the program looks for it.
if(TARGET sluice_gloo)
  install(TARGETS sluice_gloo RUNTIME_DEPENDENCY_SET bundled_libraries LIBRARY DESTINATION lib)
endif()
if(bundled)
  install(TARGETS ${bundled} RUNTIME_DEPENDENCY_SET bundled_libraries
    RUNTIME DESTINATION bin COMPONENT bundle EXCLUDE_FROM_ALL)
endif()
install(RUNTIME_DEPENDENCY_SET bundled_libraries
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread)\\.so" "^lib(cuda|cublas|cublasLt|nccl|cudart)\\.so"
  LIBRARY DESTINATION lib COMPONENT bundle EXCLUDE_FROM_ALL)
# `cmake --install build/release --component dev --prefix DIR`: the C API alone, with what find_package(sluice)
# and pkg-config need. Its version is that of the interface.
include(CMakePackageConfigHelpers)
set(SLUICE_API_VERSION 1.0.0)
# For PyTorch's steps of tools/gpu_check.
install(TARGETS sluice_c RUNTIME_DEPENDENCY_SET bundled_libraries
  LIBRARY DESTINATION lib COMPONENT bundle NAMELINK_SKIP EXCLUDE_FROM_ALL)
install(TARGETS sluice_c EXPORT sluiceTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT dev NAMELINK_COMPONENT dev)
install(FILES include/sluice/sluice.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/sluice" COMPONENT dev)
install(FILES share/examples/train_net.c share/examples/page_weights.c share/examples/lend_memory.c
  DESTINATION share/sluice/examples COMPONENT dev)
install(EXPORT sluiceTargets NAMESPACE sluice:: FILE sluiceConfig.cmake
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/sluice" COMPONENT dev)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/sluiceConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMajorVersion)
configure_file(cmake/sluice.pc.in "${CMAKE_BINARY_DIR}/sluice.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/sluiceConfigVersion.cmake"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/sluice" COMPONENT dev)
install(FILES "${CMAKE_BINARY_DIR}/sluice.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)
foreach(document README.md ARCHITECTURE.md LICENSE)
  if(EXISTS "${CMAKE_SOURCE_DIR}/${document}")
    install(FILES "${CMAKE_SOURCE_DIR}/${document}" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
  endif()
endforeach()
if(EXISTS "${CMAKE_SOURCE_DIR}/docs")
  install(DIRECTORY "${CMAKE_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
    FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png" PATTERN "*.toml")
endif()
# The machines on paper, which the program finds next to its own directory; in a build tree too.
install(DIRECTORY "${CMAKE_SOURCE_DIR}/share/hardware" DESTINATION share/sluice
  FILES_MATCHING PATTERN "*.json" PATTERN "*.md")
install(DIRECTORY "${CMAKE_SOURCE_DIR}/share/hardware" DESTINATION share/sluice COMPONENT dev
  FILES_MATCHING PATTERN "*.json")
# The commit of the bundle, for the results measured with it.
install(CODE "execute_process(COMMAND git -C \"${CMAKE_SOURCE_DIR}\" describe --always --dirty --abbrev=40
    OUTPUT_FILE \"\${CMAKE_INSTALL_PREFIX}/COMMIT\" ERROR_QUIET)" COMPONENT bundle EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_FILE_NAME "sluice-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_STRIP_FILES ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_COMPONENTS_ALL Unspecified bundle)
include(CPack)
