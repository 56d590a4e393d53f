/* Damage to the storage of a session or a pager, as a bad disk would do it. A program that includes
 * this file defines _POSIX_C_SOURCE first. */
#ifndef SLUICE_TESTS_ENGINE_CAPI_CORRUPT_H
#define SLUICE_TESTS_ENGINE_CAPI_CORRUPT_H
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Overwrites 64 KiB from `offset` on of every file above 128 KiB below `folder` that this process
 * has open. */
static int corrupt_files(const char* folder, off_t offset) {
  DIR* open_files = opendir("/proc/self/fd");
  struct dirent* entry;
  int corrupted = 0;
  if (open_files == NULL) return 0;
  while ((entry = readdir(open_files)) != NULL) {
    char path[300], target[4096];
    static unsigned char garbage[65536];
    struct stat facts;
    ssize_t length;
    int file;
    snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
    length = readlink(path, target, sizeof(target) - 1);
    if (length <= 0) continue;
    target[length] = '\0';
    if (strncmp(target, folder, strlen(folder)) != 0) continue;
    file = open(path, O_WRONLY);
    if (file < 0) continue;
    memset(garbage, 0xab, sizeof(garbage));
    if (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > (1 << 17)) {
      corrupted += pwrite(file, garbage, sizeof(garbage), offset) == (ssize_t)sizeof(garbage);
    }
    close(file);
  }
  closedir(open_files);
  return corrupted;
}
#endif
