//! Which of several servers has an object.

use std::hash::{DefaultHasher, Hash, Hasher};

use spillway_wire::switch::ServerId;

/// The objects of all servers: each belongs to one of them, by a hash of its name. Frontends have none. All servers of a
/// service must be the same program, with the same lists.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    name: String,
    own: ServerId,
    /// The servers that have objects, in ascending order, so that each server computes the same owner of an object.
    servers: Vec<ServerId>,
    /// The frontend that examines each request first; `None`: the server that has read it does.
    examiner: Option<ServerId>,
}

impl Partition {
    /// `name` and `own`: this server, which is one of `servers`.
    pub(crate) fn new(name: &str, own: ServerId, servers: impl IntoIterator<Item = ServerId>) -> Partition {
        let mut servers: Vec<ServerId> = servers.into_iter().collect();
        servers.sort_unstable();
        debug_assert!(servers.contains(&own), "this server is one of all");
        Partition { name: name.to_owned(), own, servers, examiner: None }
    }

    /// The same servers, of which these have no objects; `None` if none is left that has some.
    pub(crate) fn with_frontends(mut self, frontends: &[ServerId]) -> Option<Partition> {
        self.servers.retain(|server| !frontends.contains(server));
        (!self.servers.is_empty()).then_some(self)
    }

    /// The same, with a frontend that examines each request before the server that has the object gets it.
    pub(crate) fn examined_by(self, frontend: ServerId) -> Partition {
        Partition { examiner: Some(frontend), ..self }
    }

    /// The server that examines a request which this server has read itself, if it is another one.
    pub(crate) fn examiner(&self) -> Option<ServerId> {
        self.examiner.filter(|server| *server != self.own)
    }

    /// This server.
    pub(crate) fn own(&self) -> ServerId {
        self.own
    }

    /// This server's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The server that has an object, if it is another one.
    pub(crate) fn elsewhere(&self, object: &str) -> Option<ServerId> {
        let mut hasher = DefaultHasher::new();
        object.hash(&mut hasher);
        let place = hasher.finish() % self.servers.len() as u64;
        let server = self.servers.iter().copied().nth(usize::try_from(place).ok()?)?;
        (server != self.own).then_some(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_belongs_to_one_of_the_servers_that_agree_on_it() {
        let ids = [7, 3, 5].map(ServerId);
        let partitions = ids.map(|own| Partition::new("name", own, ids));
        let mut objects = [0; 3];
        for number in 0..3_000 {
            let object = format!("/object/{number}");
            let owners = partitions.each_ref().map(|partition| partition.elsewhere(&object));
            let at_home = owners.iter().position(Option::is_none).expect("one server has the object");
            objects[at_home] += 1;
            let others = owners.iter().enumerate().filter(|(place, _)| *place != at_home);
            assert!(others.map(|(_, owner)| *owner).all(|owner| owner == Some(ids[at_home])), "{owners:?}");
        }
        assert!(objects.iter().all(|count| (900..1_100).contains(count)), "{objects:?}");
    }

    #[test]
    fn frontends_have_no_objects_and_all_servers_agree_on_who_has_them() {
        let ids = [7, 3, 5].map(ServerId);
        let partition = |own| Partition::new("name", own, ids);
        let [frontend, one, two] = ids.map(|own| partition(own).with_frontends(&[ids[0]]).unwrap());
        for number in 0..100 {
            let object = format!("/object/{number}");
            let owner = frontend.elsewhere(&object).expect("the frontend has no object");
            assert_eq!(one.elsewhere(&object), (owner != ids[1]).then_some(owner));
            assert_eq!(two.elsewhere(&object), (owner != ids[2]).then_some(owner));
        }
        assert!(partition(ids[0]).with_frontends(&ids).is_none());
        let examiners = [frontend, one].map(|partition| partition.examined_by(ids[0]).examiner());
        assert_eq!((examiners, two.examiner()), ([None, Some(ids[0])], None));
    }
}
