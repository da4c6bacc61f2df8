/* Preloaded before the C library while instructions are counted. It always gives the server's hash tables the same seed, so
 * that lookups take the same steps in every run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef FILE *(*opener)(const char *, const char *);

static FILE *open_by(const char *function, const char *path, const char *mode) {
    opener next = (opener)dlsym(RTLD_NEXT, function);
    return next(strcmp(path, "/dev/urandom") ? path : "/dev/zero", mode);
}

FILE *fopen(const char *path, const char *mode) { return open_by("fopen", path, mode); }
FILE *fopen64(const char *path, const char *mode) { return open_by("fopen64", path, mode); }
