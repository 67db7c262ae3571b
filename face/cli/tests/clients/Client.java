import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;

/**
 * spymemcached, text and binary protocol: connections that store, read and count; nothing is missing or done twice.
 * Arguments: port, seconds. Prints the number of requests.
 */
public class Client {
  private static long work(int me, Protocol protocol, int port, long until) throws Exception {
    var factory = new ConnectionFactoryBuilder().setProtocol(protocol).setOpTimeout(25_000).build();
    var client = new MemcachedClient(factory, List.of(new InetSocketAddress("127.0.0.1", port)));
    long turns = 0;
    client.set("java" + me, 0, "0").get();
    while (System.nanoTime() < until) {
      String key = "java" + me + "-" + turns % 50;
      String value = (key + " ").repeat((int) (1 + turns % 300));
      Future<Boolean> set = client.set(key, 0, value);
      Object got = client.get(key);
      turns += 1;
      long sum = client.incr("java" + me, 1);
      if (!set.get() || !value.equals(got) || sum != turns) {
        throw new IllegalStateException("wrong in turn " + turns + " of " + me + ": " + sum);
      }
    }
    client.shutdown(5, TimeUnit.SECONDS);
    return 3 * turns;
  }

  public static void main(String[] arguments) throws Exception {
    System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
    Logger.getLogger("net.spy.memcached").setLevel(Level.WARNING);
    int port = Integer.parseInt(arguments[0]);
    long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(arguments[1]));
    ExecutorService threads = Executors.newFixedThreadPool(4);
    var tasks = new ArrayList<Callable<Long>>();
    for (int me = 0; me < 4; me++) {
      int number = me;
      Protocol protocol = me % 2 == 0 ? Protocol.TEXT : Protocol.BINARY;
      tasks.add(() -> work(number, protocol, port, until));
    }
    long requests = 0;
    for (Future<Long> done : threads.invokeAll(tasks)) {
      requests += done.get();
    }
    System.out.println(requests);
    System.exit(0);
  }
}
