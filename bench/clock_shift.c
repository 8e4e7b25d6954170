/* Preloaded into a process: shifts its wall clock by the seconds that stand in a file, and no other clock.
 * Built by bench/own_faults.py; FOREBAY_BENCH_CLOCK names the file, which holds one 64-bit integer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *shift_s;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FOREBAY_BENCH_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  if (fd < 0) return;
  void *page = mmap(0, sizeof *shift_s, PROT_READ, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) shift_s = page;
  close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = real_gettime(id, now);
  if (!failed && shift_s && id == CLOCK_REALTIME) now->tv_sec += *shift_s;
  return failed;
}
