# Which toolkits the CUDA backend is built with, and what is said of others. They are made up, of what is looked at:
#   cmake -DSOURCE= -DWORK= -P this
if(ASKED)
  set(CMAKE_FIND_LIBRARY_PREFIXES lib)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  include(${SOURCE}/cmake/TuttiCuda.cmake)
  message(STATUS "headers: '${TUTTI_CUDA_INCLUDE}'")
  return()
endif()

# A toolkit whose compiler compiles nothing.
function(make_toolkit version)
  set(toolkit ${WORK}/${version})
  file(WRITE ${toolkit}/include/cuda_runtime_api.h "#define CUDART_VERSION  ${version}\n")
  file(WRITE ${toolkit}/lib64/libcudart_static.a "")
  file(WRITE ${toolkit}/bin/nvcc "#!/bin/sh\necho no compiler >&2\nexit 1\n")
  file(CHMOD ${toolkit}/bin/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

# TEXT: what is said, a pattern; and what else CMake is given.
function(expect version fails text)
  set(ENV{CUDACXX} ${WORK}/${version}/bin/nvcc)
  execute_process(COMMAND ${CMAKE_COMMAND} -DASKED=ON -DSOURCE=${SOURCE} ${ARGN} -P ${CMAKE_CURRENT_LIST_FILE}
                  WORKING_DIRECTORY ${WORK} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # errors are broken into lines
  if((failed AND NOT fails) OR (fails AND NOT failed) OR NOT output MATCHES "${text}")
    message(FATAL_ERROR "CUDA ${version} with '${ARGN}', which should say '${text}':\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
make_toolkit(12020)
make_toolkit(12030)
make_toolkit(13000)
set(old "12020/bin/nvcc is of CUDA 12.2, and 12.3 or later is needed: set CUDACXX")
expect(12020 OFF "CUDA backend: not built, since [^ ]*${old}.*headers: ''" -DTUTTI_CUDA=AUTO)
expect(12020 OFF "headers: ''" -DTUTTI_CUDA=AUTO -DTUTTI_SANITIZE=address)
expect(12020 ON "TUTTI_CUDA is ON, but [^ ]*${old}" -DTUTTI_CUDA=ON)
set(tried "not built, since [^ ]*nvcc cannot compile for 90: no compiler")
foreach(version 12030 13000)
  expect(${version} OFF "${tried}.*headers: '[^']*${version}/include'" -DTUTTI_CUDA=AUTO)
endforeach()
