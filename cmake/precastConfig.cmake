# find_package(precast) for C and C++ programs that run compiled models.
#
#   find_package(precast REQUIRED)
#   add_executable(app main.cpp)
#   target_link_libraries(app PRIVATE precast::precast)     # precast.h, and oneDNN, which models call
#   precast_add_model(classifier "${CMAKE_CURRENT_SOURCE_DIR}/libclassifier.so")
#   target_link_libraries(app PRIVATE classifier)           # a library from `precast compile`
#
# Point CMake here:  cmake -B build -Dprecast_DIR="$(precast paths cmake)"
#
# oneDNN is looked for where pip installs it, then on the system; precast_ONEDNN_LIBRARY names another.

get_filename_component(_precast_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)

# <environment>/lib/python3.x/site-packages/precast/cmake, and the environment that is active.
find_library(precast_ONEDNN_LIBRARY NAMES libdnnl.so.3 dnnl
  HINTS "${_precast_root}/../../.." "$ENV{VIRTUAL_ENV}/lib" "$ENV{CONDA_PREFIX}/lib")

include(FindPackageHandleStandardArgs)
set(precast_INCLUDE_DIR "${_precast_root}/include")
find_package_handle_standard_args(precast REQUIRED_VARS precast_INCLUDE_DIR precast_ONEDNN_LIBRARY
  REASON_FAILURE_MESSAGE "oneDNN was not found: pip install onednn-cpu-gomp, or set precast_ONEDNN_LIBRARY")
if(NOT precast_FOUND)
  return()
endif()

if(NOT TARGET precast::precast)
  add_library(precast::precast INTERFACE IMPORTED)
  set_target_properties(precast::precast PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${precast_INCLUDE_DIR}")
  # Only models call oneDNN: without this the linker would drop it from the program.
  target_link_libraries(precast::precast INTERFACE
    "-Wl,--push-state,--no-as-needed" "${precast_ONEDNN_LIBRARY}" "-Wl,--pop-state" ${CMAKE_DL_LIBS})
endif()

# A model that `precast compile` wrote, as a library to link.
function(precast_add_model name library)
  add_library(${name} SHARED IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION "${library}" IMPORTED_NO_SONAME TRUE)
  target_link_libraries(${name} INTERFACE precast::precast)
endfunction()
