# Makes a C array of a text file, so that the program carries it: cmake -DIN=FILE -DNAME=ARRAY -DOUT=FILE.c -P this.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUT} "/* Generated from ${IN}. */\nextern const char ${NAME}[];\nconst char ${NAME}[] = {\n${hex}0};\n")
