# Which toolkits the CUDA backend is built with, and what is said of others. They are made up, of what is looked at:
#   cmake -DSOURCE= -DWORK= -P this
if(ASKED)
  set(CMAKE_FIND_LIBRARY_PREFIXES lib)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  foreach(toolkit ${ASKED}) # as where CMake is run again and again
    set(ENV{CUDACXX} ${toolkit})
    include(${SOURCE}/cmake/TuttiCuda.cmake)
  endforeach()
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

# VERSIONS: one after the other. TEXT: what is said, a pattern; and what else CMake is given.
function(expect versions fails text)
  set(asked)
  foreach(version ${versions})
    list(APPEND asked ${WORK}/${version}/bin/nvcc)
  endforeach()
  execute_process(COMMAND ${CMAKE_COMMAND} "-DASKED=${asked}" -DSOURCE=${SOURCE} ${ARGN} -P ${CMAKE_CURRENT_LIST_FILE}
                  WORKING_DIRECTORY ${WORK} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # errors are broken into lines
  if((failed AND NOT fails) OR (fails AND NOT failed) OR NOT output MATCHES "${text}")
    message(FATAL_ERROR "CUDA ${versions} with '${ARGN}', which should say '${text}':\n${output}")
  endif()
endfunction()

# LAST: the version that comes to be tried in the end.
function(expect_tried last)
  set(tried "not built, since [^ ]*/${last}/bin/nvcc cannot compile for 90: no compiler")
  expect("${ARGN}" OFF "${tried} -- headers: '[^']*/${last}/include'" -DTUTTI_CUDA=AUTO)
endfunction()

file(REMOVE_RECURSE ${WORK})
make_toolkit(12020)
make_toolkit(12030)
make_toolkit(13000)
set(old "12020/bin/nvcc is of CUDA 12.2, and 12.3 or later is needed: set CUDACXX")
expect(12020 OFF "CUDA backend: not built, since [^ ]*${old}.*headers: ''" -DTUTTI_CUDA=AUTO)
expect(12020 OFF "headers: ''" -DTUTTI_CUDA=AUTO -DTUTTI_SANITIZE=address)
expect(12020 ON "TUTTI_CUDA is ON, but [^ ]*${old}" -DTUTTI_CUDA=ON)
expect_tried(12030 12030)
expect_tried(13000 13000)
# With another compiler come other headers, and a choice is kept when CUDACXX is gone.
expect_tried(13000 12030 13000)
expect_tried(13000 12020 13000)
expect_tried(13000 13000 gone)
