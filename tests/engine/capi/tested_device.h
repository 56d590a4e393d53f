/* The device of a test that is compiled twice: the CPU, or with TESTED_CUDA the simulated CUDA
 * driver that LD_LIBRARY_PATH names. Its streams belong to the test, as to a host program, and work
 * slowly, on threads of their own. On the CPU any number is a stream. */
#ifndef SLUICE_TESTS_ENGINE_CAPI_TESTED_DEVICE_H
#define SLUICE_TESTS_ENGINE_CAPI_TESTED_DEVICE_H
#include "tests/engine/capi/check.h"

#ifdef TESTED_CUDA
#include <dlfcn.h>
#define TESTED_DEVICE SLUICE_DEVICE_CUDA

#ifdef __SANITIZE_ADDRESS__
/* The search for leaks crashes on its own record of the driver's thread-local data. */
const char* __asan_default_options(void);
const char* __asan_default_options(void) {
  return "intercept_tls_get_addr=0";
}
#endif

/* The few functions that a program needs (cuda.h; CUDA_SUCCESS is 0). */
static struct {
  int (*init)(unsigned);
  int (*retain)(void** context, int device);
  int (*release)(int device);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);
  int (*host_register)(void* data, size_t bytes, unsigned flags);
  int (*host_unregister)(void* data);
  int (*to_host)(void* into, unsigned long long from, size_t bytes, void* stream);
  int (*fill)(unsigned long long into, unsigned char value, size_t bytes, void* stream);
} driver;

static inline void load_function(void* library, const char* name, void* function) {
  void* found = dlsym(library, name);
  CHECK(found != NULL);
  memcpy(function, &found, sizeof(found));
}

/* Makes the device's context current, as a program's own CUDA code would. */
static inline int open_device(void) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  void* context = NULL;
  CHECK(library != NULL);
  if (library == NULL) return 0;
  load_function(library, "cuInit", &driver.init);
  load_function(library, "cuDevicePrimaryCtxRetain", &driver.retain);
  load_function(library, "cuDevicePrimaryCtxRelease_v2", &driver.release);
  load_function(library, "cuCtxPushCurrent_v2", &driver.push);
  load_function(library, "cuCtxPopCurrent_v2", &driver.pop);
  load_function(library, "cuStreamCreate", &driver.stream_create);
  load_function(library, "cuStreamDestroy_v2", &driver.stream_destroy);
  load_function(library, "cuStreamSynchronize", &driver.stream_synchronize);
  load_function(library, "cuMemHostRegister_v2", &driver.host_register);
  load_function(library, "cuMemHostUnregister", &driver.host_unregister);
  load_function(library, "cuMemcpyDtoHAsync_v2", &driver.to_host);
  load_function(library, "cuMemsetD8Async", &driver.fill);
  if (check_failures != 0) return 0;
  CHECK(driver.init(0) == 0 && driver.retain(&context, 0) == 0 && driver.push(context) == 0);
  return check_failures == 0;
}
static inline void close_device(void) {
  void* context = NULL;
  CHECK(driver.pop(&context) == 0 && driver.release(0) == 0);
}

static inline sluice_stream make_stream(void) {
  sluice_stream stream = {TESTED_DEVICE, 0, NULL};
  CHECK(driver.stream_create(&stream.native, 0) == 0);
  return stream;
}
static inline void destroy_stream(sluice_stream stream) {
  CHECK(driver.stream_destroy(stream.native) == 0);
}
static inline void finish_stream(sluice_stream stream) {
  CHECK(driver.stream_synchronize(stream.native) == 0);
}

/* Memory that a stream may copy into. */
static inline unsigned char* make_results(size_t bytes) {
  void* results = NULL;
  if (posix_memalign(&results, 4096, bytes) != 0) abort();
  CHECK(driver.host_register(results, bytes, 0) == 0);
  return results;
}
static inline void destroy_results(unsigned char* results) {
  CHECK(driver.host_unregister(results) == 0);
  free(results);
}

/* Queues a read of the device's memory after some other work of the stream. */
static inline void queue_read(void* into, const void* from, size_t bytes, sluice_stream stream) {
  int i;
  for (i = 0; i < 3; ++i) {
    CHECK(driver.to_host(into, (unsigned long long)(uintptr_t)from, bytes, stream.native) == 0);
  }
}
static inline void queue_fill(void* into, int value, size_t bytes, sluice_stream stream) {
  CHECK(driver.fill((unsigned long long)(uintptr_t)into, (unsigned char)value, bytes,
                    stream.native) == 0);
}

#else
#define TESTED_DEVICE SLUICE_DEVICE_CPU

static inline int open_device(void) {
  return 1;
}
static inline void close_device(void) {}

static inline sluice_stream make_stream(void) {
  static uintptr_t last;
  sluice_stream stream = {TESTED_DEVICE, 0, NULL};
  stream.native = (void*)++last;
  return stream;
}
static inline void destroy_stream(sluice_stream stream) {
  (void)stream;
}
static inline void finish_stream(sluice_stream stream) {
  (void)stream;
}

static inline unsigned char* make_results(size_t bytes) {
  unsigned char* results = malloc(bytes);
  if (results == NULL) abort();
  return results;
}
static inline void destroy_results(unsigned char* results) {
  free(results);
}

static inline void queue_read(void* into, const void* from, size_t bytes, sluice_stream stream) {
  (void)stream;
  memcpy(into, from, bytes);
}
static inline void queue_fill(void* into, int value, size_t bytes, sluice_stream stream) {
  (void)stream;
  memset(into, value, bytes);
}
#endif
#endif
