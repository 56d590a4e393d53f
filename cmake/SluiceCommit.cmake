# Script: writes the commit of SOURCE to the header OUTPUT if it is another one than before. A source
# archive has none.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#define SLUICE_COMMIT \"${commit}\"\n")
