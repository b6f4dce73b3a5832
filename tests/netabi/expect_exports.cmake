# A plugin shows its ABI symbols and nothing else, and needs no library of Tutti's:
# cmake -DPLUGIN=file "-DWANTED=symbol symbol" -P this
execute_process(COMMAND nm -D --defined-only --format=posix ${PLUGIN} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE " [^\n]*\n" ";" symbols "${symbols}")
list(FILTER symbols INCLUDE REGEX ".")
list(SORT symbols COMPARE NATURAL)
separate_arguments(wanted UNIX_COMMAND "${WANTED}")
if(NOT symbols STREQUAL wanted)
  message(FATAL_ERROR "${PLUGIN} exports ${symbols}, not ${wanted}")
endif()
execute_process(COMMAND readelf -d ${PLUGIN} OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
if(needed MATCHES "NEEDED[^\n]*tutti")
  message(FATAL_ERROR "${PLUGIN} needs a library of Tutti's:\n${needed}")
endif()
