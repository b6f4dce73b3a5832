# Whether the CUDA backend is built, and with what. TUTTI_CUDA=AUTO builds it where an nvcc is found that can compile for
# the wanted architectures, and prints one line that says what came of it. Sets TUTTI_CUDA_FOUND, and then
#   TUTTI_CUDA_NVCC, TUTTI_CUDA_GENCODE   the compiler and its options for the architectures
#   tutti_cudart                          a target with CUDA's headers and the runtime, linked statically
# TUTTI_CUDA_INCLUDE is set wherever headers are found that are not too old, for tests that need no more.
# CMake's own support for CUDA is not used: it would try the compiler in every build directory, and hand this project's
# options for C to nvcc.
set(TUTTI_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON or OFF")
set(TUTTI_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures to compile for, a list such as 80;90; PTX of the last too")
set(TUTTI_CUDA_FOUND OFF)
set(TUTTI_CUDA_OLDEST 12.3) # the first whose headers have fabric handles

# Whether the headers are of a CUDA that is too old. They are then forgotten, so that another one is found next time.
macro(tutti_cuda_check_version why)
  set(version)
  if(EXISTS ${TUTTI_CUDA_INCLUDE}/cuda_runtime_api.h)
    file(STRINGS ${TUTTI_CUDA_INCLUDE}/cuda_runtime_api.h version REGEX "^#define CUDART_VERSION +[0-9]+")
  endif()
  string(REGEX MATCH "[0-9]+" version "${version}") # 1000 times the first number, and 10 times the second
  if(version)
    math(EXPR major "${version} / 1000")
    math(EXPR minor "${version} % 1000 / 10")
    if(${major}.${minor} VERSION_LESS ${TUTTI_CUDA_OLDEST})
      string(CONCAT ${why} "${TUTTI_CUDA_NVCC} is of CUDA ${major}.${minor}, and ${TUTTI_CUDA_OLDEST} or later is needed: "
                           "set CUDACXX to the nvcc of one")
      unset(TUTTI_CUDA_INCLUDE CACHE)
      unset(TUTTI_CUDA_RUNTIME CACHE)
      unset(TUTTI_CUDA_NVCC CACHE)
    endif()
  endif()
endmacro()

# Looks for the compiler, CUDA's headers and its runtime. Sets `why` to what is missing.
macro(tutti_cuda_find why)
  if(EXISTS "$ENV{CUDACXX}" AND NOT "$ENV{CUDACXX}" STREQUAL "${TUTTI_CUDA_NVCC}")
    if(TUTTI_CUDA_NVCC) # another one, with headers and a runtime of its own
      unset(TUTTI_CUDA_INCLUDE CACHE)
      unset(TUTTI_CUDA_RUNTIME CACHE)
    endif()
    # Kept, since builds run CMake again, and not with this environment.
    set(TUTTI_CUDA_NVCC "$ENV{CUDACXX}" CACHE FILEPATH "CUDA's compiler" FORCE)
  endif()
  find_program(TUTTI_CUDA_NVCC nvcc PATHS /usr/local/cuda/bin DOC "CUDA's compiler")
  if(TUTTI_CUDA_NVCC)
    get_filename_component(root ${TUTTI_CUDA_NVCC} REALPATH)
    get_filename_component(root ${root} DIRECTORY)
    get_filename_component(root ${root} DIRECTORY)
    find_path(TUTTI_CUDA_INCLUDE cuda_runtime_api.h HINTS ${root}/include
              ${root}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux/include)
    find_library(TUTTI_CUDA_RUNTIME cudart_static HINTS ${root}/lib64 ${root}/lib
                 ${root}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux/lib)
  endif()
  if(NOT TUTTI_CUDA_NVCC)
    set(${why} "there is no nvcc in PATH, CUDACXX or /usr/local/cuda/bin")
  elseif(NOT TUTTI_CUDA_INCLUDE OR NOT TUTTI_CUDA_RUNTIME)
    set(${why} "${TUTTI_CUDA_NVCC} is there, but not cuda_runtime_api.h and libcudart_static.a of the same toolkit")
  endif()
  if(TUTTI_CUDA_INCLUDE)
    tutti_cuda_check_version(${why})
  endif()
endmacro()

# Compiles a kernel, once for each compiler and list of architectures. Sets `why` to the compiler's first complaint.
macro(tutti_cuda_try why)
  set(tried ${TUTTI_CUDA_NVCC} ${TUTTI_CUDA_GENCODE})
  if(NOT "${TUTTI_CUDA_TRIED}" STREQUAL "${tried}")
    file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/try.cu "__global__ void kernel(int *p) { *p = 1; }\n")
    execute_process(COMMAND ${TUTTI_CUDA_NVCC} -std=c++17 ${TUTTI_CUDA_GENCODE} -c try.cu -o try.o
                    WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/CMakeFiles RESULT_VARIABLE failed
                    OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(failed)
      string(REGEX MATCH "[^\n]+" output "${output}")
      set(${why} "${TUTTI_CUDA_NVCC} cannot compile for ${TUTTI_CUDA_ARCHITECTURES}: ${output}")
    else()
      set(TUTTI_CUDA_TRIED "${tried}" CACHE INTERNAL "What was seen to compile")
    endif()
  endif()
endmacro()

function(tutti_cuda)
  set(why "")
  if(TUTTI_CUDA STREQUAL "OFF")
    set(why "TUTTI_CUDA is OFF")
  else()
    tutti_cuda_find(why)
    if(TUTTI_SANITIZE)
      set(why "sanitizers do not go with it")
    endif()
  endif()
  if(NOT why)
    set(TUTTI_CUDA_GENCODE)
    foreach(architecture ${TUTTI_CUDA_ARCHITECTURES})
      list(APPEND TUTTI_CUDA_GENCODE -gencode arch=compute_${architecture},code=sm_${architecture})
    endforeach()
    list(GET TUTTI_CUDA_ARCHITECTURES -1 last) # newer cards compile its PTX for themselves
    list(APPEND TUTTI_CUDA_GENCODE -gencode arch=compute_${last},code=compute_${last})
    tutti_cuda_try(why)
  endif()
  if(why)
    if(TUTTI_CUDA STREQUAL "AUTO" OR TUTTI_CUDA STREQUAL "OFF")
      message(STATUS "CUDA backend: not built, since ${why}")
    else()
      message(FATAL_ERROR "TUTTI_CUDA is ${TUTTI_CUDA}, but ${why}. Set TUTTI_CUDA=OFF to build without.")
    endif()
    return()
  endif()
  message(STATUS "CUDA backend: built with ${TUTTI_CUDA_NVCC} for architectures ${TUTTI_CUDA_ARCHITECTURES}")
  add_library(tutti_cudart INTERFACE)
  target_include_directories(tutti_cudart SYSTEM INTERFACE ${TUTTI_CUDA_INCLUDE})
  target_link_libraries(tutti_cudart INTERFACE ${TUTTI_CUDA_RUNTIME} Threads::Threads ${CMAKE_DL_LIBS} rt)
  set(TUTTI_CUDA_FOUND ON PARENT_SCOPE)
  set(TUTTI_CUDA_NVCC ${TUTTI_CUDA_NVCC} PARENT_SCOPE)
  set(TUTTI_CUDA_GENCODE ${TUTTI_CUDA_GENCODE} PARENT_SCOPE)
endfunction()
tutti_cuda()
