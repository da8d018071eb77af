/* Faults for tests: preloaded, it counts the calls that change files under one folder and makes the n-th one fail.
   Modes: 1 SIGKILL before the call; 2 SIGKILL after half of a write, or right after any other call; 3 ENOSPC; 4 EIO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long target, mode, count;

void fault_arm(const char *path, long number, long how) {
  snprintf(folder, sizeof folder, "%s", path);
  count = 0;
  target = number;
  mode = how;
}
long fault_count(void) { return count; }

static int inside_path(const char *path) { return mode && path && !strncmp(path, folder, strlen(folder)); }
static int inside_fd(int fd) {
  char link[64], path[PATH_MAX];
  if (!mode) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return inside_path(path);
}
/* 0: go on; 1: fail with errno set; 2: do half, then die */
static int due(int inside, int is_sync) {
  if (!inside || ++count != target) return 0;
  if (mode == 1) raise(SIGKILL);
  if (mode == 2) return 2;
  if (mode == 3 && is_sync) return 0; /* a full disk is told at writing */
  errno = mode == 3 ? ENOSPC : EIO;
  return 1;
}
#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define WRAP(type, name, params, args, inside, is_sync) \
  type name params { REAL(name); int what = due(inside, is_sync); if (what == 1) return -1; \
    type result = real args; if (what == 2) raise(SIGKILL); return result; }

ssize_t write(int fd, const void *data, size_t size) {
  REAL(write);
  int what = due(inside_fd(fd), 0);
  if (what == 1) return -1;
  if (what == 2) { real(fd, data, size / 2); raise(SIGKILL); }
  return real(fd, data, size);
}
#define PWRITE(name, offset_type) \
  ssize_t name(int fd, const void *data, size_t size, offset_type offset) { REAL(name); \
    int what = due(inside_fd(fd), 0); if (what == 1) return -1; \
    if (what == 2) { real(fd, data, size / 2, offset); raise(SIGKILL); } \
    return real(fd, data, size, offset); }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
WRAP(int, fsync, (int fd), (fd), inside_fd(fd), 1)
WRAP(int, fdatasync, (int fd), (fd), inside_fd(fd), 1)
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), inside_fd(fd), 0)
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), inside_fd(fd), 0)
WRAP(int, rename, (const char *from, const char *to), (from, to), inside_path(from), 0)
WRAP(int, mkdir, (const char *path, mode_t bits), (path, bits), inside_path(path), 0)
WRAP(int, unlink, (const char *path), (path), inside_path(path), 0)
WRAP(int, rmdir, (const char *path), (path), inside_path(path), 0)
