/* Calls a function with a struct whose struct_size is wrong in each way, and with NULL. is_input:
 * 0, the struct is filled; 1, it is read; 2, it is read and NULL stands for the defaults. The
 * struct lies at the end of an allocation, so that ASan sees a read beyond the stated size. */
#ifndef SLUICE_TESTS_ENGINE_CAPI_STRUCTS_H
#define SLUICE_TESTS_ENGINE_CAPI_STRUCTS_H
#include "tests/engine/capi/check.h"

/* Must return the status of a call with this struct, and undo it if it is SLUICE_OK. */
typedef sluice_status (*struct_call)(void* context, void* data);

static void* struct_copy(const void* valid, size_t bytes, uint32_t struct_size,
                         unsigned char tail) {
  const size_t allocated = struct_size > sizeof(uint32_t) ? struct_size : sizeof(uint32_t);
  unsigned char* copy = malloc(allocated);
  if (copy == NULL) abort();
  memset(copy, tail, allocated);
  memcpy(copy, valid, bytes < allocated ? bytes : allocated);
  memcpy(copy, &struct_size, sizeof(struct_size));
  return copy;
}

static inline void check_struct(struct_call call, void* context, const void* valid, size_t bytes,
                                int is_input) {
  const uint32_t size = (uint32_t)bytes;
  const uint32_t wrong_sizes[] = {0, 1, 4, size - 1, UINT32_MAX};
  void* copy;
  size_t i;
  EXPECT(is_input == 2 ? SLUICE_OK : SLUICE_E_INPUT, call(context, NULL));
  for (i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); ++i) {
    copy = struct_copy(valid, bytes, wrong_sizes[i] == UINT32_MAX ? size : wrong_sizes[i], 0);
    memcpy(copy, &wrong_sizes[i], sizeof(uint32_t));
    EXPECT(SLUICE_E_INPUT, call(context, copy));
    free(copy);
  }
  copy = struct_copy(valid, bytes, size + 24, 0);
  EXPECT(SLUICE_OK, call(context, copy));
  free(copy);
  copy = struct_copy(valid, bytes, size + 24, 0xab);
  EXPECT(is_input ? SLUICE_E_VERSION : SLUICE_OK, call(context, copy));
  if (!is_input) {
    /* A newer program must not take garbage for a figure. */
    for (i = 0; i < 24; ++i) CHECK(((unsigned char*)copy)[bytes + i] == 0);
  }
  free(copy);
}
#endif
