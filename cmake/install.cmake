# find_package(quaver) after `cmake --install`: target quaver::quaver.
include(CMakePackageConfigHelpers)
install(TARGETS quaver EXPORT quaver_targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/quaver" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)
install(EXPORT quaver_targets NAMESPACE quaver:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/quaver" COMPONENT development)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/quaver-config.cmake.in" "${PROJECT_BINARY_DIR}/quaver-config.cmake"
                              INSTALL_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/quaver")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/quaver-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/quaver-config.cmake" "${PROJECT_BINARY_DIR}/quaver-config-version.cmake"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/quaver" COMPONENT development)
