# Runs one clause of the suite against the broken plugin and wants it to fail, with a reason that fits, and the good
# plugin to pass the same clause: cmake -DNETABI= -DBROKEN= -DINNER= -DHOW= -DCLAUSE= -DREASON= -P expect_failure.cmake
set(ENV{BROKEN_INNER} ${INNER})
set(command ${NETABI} ${BROKEN} --only ${CLAUSE} --deadline 10)

set(ENV{BROKEN} ${HOW})
execute_process(COMMAND ${command} OUTPUT_VARIABLE output RESULT_VARIABLE status)
if(NOT status EQUAL 1 OR NOT output MATCHES "FAIL ${CLAUSE} [^\n]*${REASON}")
  message(FATAL_ERROR "the suite did not fail ${HOW} on ${CLAUSE} with \"${REASON}\": status ${status}\n${output}")
endif()

unset(ENV{BROKEN})
execute_process(COMMAND ${command} OUTPUT_VARIABLE output RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR NOT output MATCHES "PASS ${CLAUSE} ")
  message(FATAL_ERROR "the suite fails ${CLAUSE} though nothing is broken: status ${status}\n${output}")
endif()
